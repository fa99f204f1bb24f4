"""Stages as Dask tasks, and their files as Dask values.

`connection` ─▶ `executor` (a `pipeline.stages.stage.Executor`) ── `Request` ─▶ `task` ─▶ `stage_work`
                   └─ `bundle`: files in chunks, by Dask or a shared store ────────────┘
"""
