"""Built-in tasks, one file each: a ``SPEC``, a loader and the naive baselines. A new file here is a new task."""
