//! What an optimizer knows of a tensor in addition to its values.

/// A tensor's properties that decide its weight decay and learning rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    pub length: usize,
    /// Whether it is one-dimensional: a bias or a parameter of batch-norm.
    pub vector: bool,
    pub head: bool,
}

impl Parameter {
    /// By its name: PyTorch's `bias`, which Burn calls `beta` in batch-norm.
    pub fn is_bias(&self) -> bool {
        self.vector && ["bias", "beta"].iter().any(|bias| self.name.rsplit('.').next() == Some(bias))
    }
}
