"""The playground: a local web page on top of the pipeline. `crocodil play` starts it."""
