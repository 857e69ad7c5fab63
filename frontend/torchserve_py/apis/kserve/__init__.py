"""The KServe V1 protocol, and what KServe and Vertex AI call besides the Open Inference Protocol."""
