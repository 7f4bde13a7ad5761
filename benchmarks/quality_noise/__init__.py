"""What the quality regression says of a model whose weights are harmed more and more.

The candidates are the small model as it is in other formats, and with Gaussian noise added to its matrices at rising
levels (a share of each matrix's own standard deviation), each served by a real llama.cpp. The regression is right when
the formats pass, and the noise fails from some level on.
"""
