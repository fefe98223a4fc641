//! The pod that a ShadowPod stands for.
