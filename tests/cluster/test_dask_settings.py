"""Dask's settings in a worker and in a client of our own."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="the extra cluster is not installed")

import dask

from qcompile.cluster.dask_settings import _SETTINGS, own_settings


@pytest.mark.parametrize("name", sorted(_SETTINGS))
def test_ours_hold_within_the_block_and_what_the_user_set_stays(name: str) -> None:
    default, ours = _SETTINGS[name]
    with dask.config.set({name: default}):
        with own_settings():
            assert dask.config.get(name) == ours
        assert dask.config.get(name) == default
    with dask.config.set({name: "17s"}), own_settings():
        assert dask.config.get(name) == "17s"


@pytest.mark.parametrize("name", sorted(_SETTINGS))
def test_the_values_in_the_table_are_those_of_dask(name: str) -> None:
    shipped = dask.config.defaults
    values = [dask.config.get(name, None, config=one) for one in shipped]
    assert _SETTINGS[name][0] in values
