"""Stages of torch models that run the model's own forward().

A stage is the model itself, in which layers of other stages and parameters that it does not use are
absent: they have no memory. Its forward() is the model's, called with each whole microbatch, so
that masks and positions are computed on each stage as the model does it. Where an absent layer
would return something stands what came from the stage before, and where the next stage's first
layer is called the pass ends. `watching` finds by one pass which layers a model has and what
crosses a cut; `copying` and `stages` make the stages; `studying` finds which parameters each of
them uses and checks by an example that they give what the model gives; `examples` makes examples,
and `counting` finds what a model's own loss is the mean of.
"""
