"""The worker's half: a plugin of a Dask worker, and the processes in which it carries out stages."""
