"""Tables of samples: text files, JSON lines, CSV, and folders of `datasets`."""
