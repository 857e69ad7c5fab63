"""Steps of sequences count once, however late they are sent; with a store, they survive workers and servers."""
