"""What the executables beside this package share: a cache of made things, child processes and package registries."""
