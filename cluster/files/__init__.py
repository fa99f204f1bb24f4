"""What travels: files by digest, and a recipe with the files that it reads."""
