"""The files of `bench`: rows, results in JSON, CSV and Markdown, and the statistics behind them."""
