"""Every option of every verb, once: frozen types, one field an option (`option.py` says how).

A `...Spec` is all that a verb is told beside its subjects, a `...Command` adds those and what the command
line alone takes, a `...Section` is a table of a recipe.

From the fields, and only from them: the command line (`cli/`), the recipe and its checks
(`pipeline/recipe/recipe.py`), the JSON Schema of recipes, the reference pages in `docs/reference/`,
the keys of the stages and the options in a manifest. To add an option, add a
field and the code that obeys it.
"""
