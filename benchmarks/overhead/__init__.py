"""What Paceline itself costs: the same load straight at a raw upstream, and through Paceline and its peers, in one run.

``python -m benchmarks.overhead`` prints the table; ``benchmarks/overhead/peers`` installs the peers that pip has.
"""
