"""All options of all verbs, declared once as frozen types with a field per option (see `option.py`).

A `...Spec` holds the options of a verb, a `...Command` adds the arguments and options of the command line, a
`...Section` is a table of a recipe.

The command line (`cli/`), the recipe and its checks (`pipeline/recipe/recipe.py`), the JSON Schema of
recipes, `docs/reference/`, the keys of stages and the options in manifests are derived from these fields
alone. To add an option, add a field and the code that uses it.
"""
