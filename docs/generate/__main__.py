"""`python -m docs.generate` writes the tables that are made from results into the README and the pages anew.

A table stands between `<!-- made: NAME -->` and `<!-- end -->`, so that a code browser shows it. A test fails if one of
them is not what the results say.
"""

from docs.generate import tables

if __name__ == "__main__":
    for path in tables.documents():
        path.write_text(tables.renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
