"""How often an experiment says something wrong, and how soon something right, when it is looked at after every request.

Traffic is drawn from laws like those of real requests (skewed times, a few errors); judging is the gateway's own code.
"""
