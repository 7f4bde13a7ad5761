"""The pure core: shared value types and decisions. No I/O, no clock of its own, no framework."""
