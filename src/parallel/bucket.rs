//! Gradients that are reduced together: as values in the host's memory, or as a tensor where it is.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::collective::Collective;
use super::config::ReducePrecision;
use super::device::HostBackend;
use super::engine::Mark;
use super::key::{Broken, Key};
use super::tensors::sum_across;
use crate::ops::{download, unpack};

/// A replica's share of a sum.
pub(super) enum Share<B: HostBackend> {
    Values(Vec<f32>),
    /// One behind the other, computed by the work before the mark.
    Tensor(Tensor<B, 1>, Mark),
}

/// The sum of all replicas' shares.
pub(super) enum Sum<B: HostBackend> {
    Values(Arc<Vec<f32>>),
    Tensor(Tensor<B, 1>),
}

impl<B: HostBackend> Share<B> {
    /// The share of these gradients, in the form in which `collective` reduces.
    pub(super) fn new(collective: &Collective, gradients: Vec<Tensor<B, 1>>) -> Result<Self, Broken> {
        let Some(devices) = collective.devices() else {
            return Ok(Self::Values(download(collective.buffer(), gradients)));
        };
        let whole = Tensor::cat(gradients, 0);
        let ready = devices.mark().map_err(|symptom| Broken::Replica(symptom.0))?;
        Ok(Self::Tensor(whole, ready))
    }

    /// The sum of all replicas' shares, which are sent in `precision`.
    pub(super) fn all_reduce(
        self,
        collective: &Collective,
        key: Key,
        precision: ReducePrecision,
    ) -> Result<Sum<B>, Broken> {
        match (self, precision) {
            (Self::Tensor(share, ready), precision) => {
                sum_across(collective, key, share, ready, precision).map(Sum::Tensor)
            }
            (Self::Values(share), ReducePrecision::F32) => collective.all_reduce(key, share).map(Sum::Values),
            (Self::Values(share), ReducePrecision::Bf16) => collective.all_reduce_bf16(key, share).map(Sum::Values),
        }
    }
}

impl<B: HostBackend> Sum<B> {
    /// The tensors of these lengths, one after the other.
    pub(super) fn parts(self, lengths: &[usize], collective: &Collective, device: &B::Device) -> Vec<Tensor<B, 1>> {
        match self {
            Self::Values(values) => {
                let parts = unpack(&values, lengths, device);
                collective.recycle(values);
                parts
            }
            Self::Tensor(whole) => {
                let mut end = 0;
                let mut part = |length: &usize| {
                    end += length;
                    whole.clone().slice(end - length..end)
                };
                lengths.iter().map(&mut part).collect()
            }
        }
    }
}
