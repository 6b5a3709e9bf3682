"""Constants of the method that the code runs by and the paper quotes."""

WPE_STD = 0.02
"""Standard deviation of GPT-2's initial weights. For token embeddings it is `embedding_std`."""
GRADIENT_SHARE = 0.1
"""How much of the embeddings' gradient the variant `grad_shrink` lets through."""
TINYSHAKESPEARE_LENGTH = 1_115_394
"""Characters of the corpus."""
TRAIN_SHARE = 0.9
"""Leading share of a corpus that is for training; the rest is held out."""
GRAM = 24
"""Characters that a question may not have in common with the training part."""
