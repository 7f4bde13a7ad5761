"""Routing on real engines: was the chosen one the fastest, and did its prediction hold?

Requests of mixed shapes go through a real ``paceline up``: one after the other, then four at once. Some are asked
again of every other candidate (pinned, with a prompt that no cache holds), so that it is known what the choice cost.
"""
