"""Names in a worker's folder.

STORE/lock                    held while the worker runs: two workers never share a folder
     /bundles/3f9c…/index.json, files/…   files that arrived or were made here
     /stages/build-int8-3f9c…             finished stages, of all recipes
     /published/8a1b…                     what the stages of a recipe publish
"""

BUNDLES, STAGES, PUBLISHED = "bundles", "stages", "published"
INDEX, FILES = "index.json", "files"
