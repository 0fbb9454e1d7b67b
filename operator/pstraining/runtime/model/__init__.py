"""The Keras model as named tensors: partition, optimizers and embeddings; imports no other package of the runtime."""
