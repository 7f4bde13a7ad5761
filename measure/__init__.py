"""Where the numbers come from: measurements of the engines on this machine, and their records."""
