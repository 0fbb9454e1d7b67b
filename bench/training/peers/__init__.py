"""Programs beside which the runtime is measured: TensorFlow's own ways, each as its documentation has it.

Each trains one of `models` until it is stopped, and reports its steps as our workers do.
"""
