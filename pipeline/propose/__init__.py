"""From MODEL and DATA to a recipe that runs at once."""
