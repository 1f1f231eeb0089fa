"""
Reference pages written from the code: one per dialect, one for all passes.

`python -m lampc.docgen` writes them into docs/; `--check` only says which are out of date.
"""
