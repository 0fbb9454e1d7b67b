"""Programs that the runtime is compared with: TensorFlow's strategies, each as in its documentation.

Each trains one of `models` until it is stopped, and reports its steps as the runtime's workers do.
"""
