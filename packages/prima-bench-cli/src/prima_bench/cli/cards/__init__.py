"""Cards: one Markdown page for each task, dataset and metric, made from the specs and from nothing else.

``task``, ``dataset`` and ``metric`` each render one kind of card, ``scores`` evaluates the baselines whose scores the
cards show, ``markdown`` holds the syntax, and ``writer`` gathers all pages and compares them with those on disk.
"""
