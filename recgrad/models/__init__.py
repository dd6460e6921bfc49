"""Models, one file each: `recgrad.models.base.MODELS` lists them, `recgrad.models.build` makes them."""
