"""What every room needs: files, child processes, this machine, texts, artifacts with their manifests."""
