"""One source of data a file. A new dataset is a file here and an entry in `momatch.data.catalog` or `momatch.data.load`."""
