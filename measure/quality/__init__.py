"""The quality regression: does a deployment answer as its model does in the best precision that there is?"""
