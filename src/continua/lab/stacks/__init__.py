"""Stacks of layers, trained: are they smooth in depth, how do they move tokens, and what does a price of motion do?"""
