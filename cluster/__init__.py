"""Stages on other machines: a Dask scheduler deals them out, workers carry them out.

client/    `connection` ─▶ `executor` (a `pipeline.executor.Executor`) ─┐ `Request`
worker/    `plugin` ─▶ `task` ─▶ `children` ─▶ `stage_process`  ◀───────┘ `Result`
files/     `parcel` (a recipe and the files it reads), `content` (files by digest), `transfer` (their way)
"""
