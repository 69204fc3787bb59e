"""Built-in datasets, one file each: a ``SPEC`` and the recipe behind it. A new file here is a new dataset."""
