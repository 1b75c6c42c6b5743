"""One data source per file. To add a dataset, add a file here and an entry in `momatch.data.catalog` or `momatch.data.load`."""
