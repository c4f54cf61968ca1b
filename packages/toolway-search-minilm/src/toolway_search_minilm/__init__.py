"""The model of Toolway's tool search: model.onnx and vocab.txt stand beside this file. Toolway checks their hashes."""
