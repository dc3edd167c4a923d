//! A checksum of tensors that finds every flipped bit, and is fast enough to be taken of a whole model between two
//! steps.

use burn::tensor::Tensor;
use kiln_ops::{HostOps, primitive, tensor};

/// A 64-bit checksum. Adding a number is one-to-one, so that a change of one number always changes it.
#[derive(Debug, Clone, Default)]
pub(super) struct Checksum {
    /// Numbers go round, so that the processor can work on several.
    lanes: [u64; 8],
    buffer: Vec<f32>,
}

impl Checksum {
    fn add(&mut self, numbers: &[u32]) {
        let (whole, rest) = numbers.as_chunks::<8>();
        let add = |(lane, number): (&mut u64, &u32)| *lane = mixed(*lane, u64::from(*number));
        whole.iter().for_each(|numbers| self.lanes.iter_mut().zip(numbers).for_each(add));
        self.lanes.iter_mut().zip(rest).for_each(add);
    }

    /// Adds the bits of a tensor's values.
    fn add_tensor<B: HostOps>(&mut self, tensor: Tensor<B, 1>) {
        let mut values = std::mem::take(&mut self.buffer);
        values.clear();
        B::append_to(primitive(tensor), &mut values);
        self.add(bytemuck::cast_slice(&values));
        self.buffer = values;
    }

    /// Adds the bits of several tensors' values, which come from a device in one copy.
    pub(super) fn add_tensors<B: HostOps>(&mut self, tensors: Vec<Tensor<B, 1>>) {
        if B::is_processor() || tensors.is_empty() {
            tensors.into_iter().for_each(|tensor| self.add_tensor(tensor));
        } else {
            self.add_tensor(tensor::<B, 1>(B::side_by_side(tensors.into_iter().map(primitive).collect())));
        }
    }

    pub(super) fn of(values: &[f32]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytemuck::cast_slice(values));
        sum.value()
    }

    pub(super) fn value(&self) -> u64 {
        self.lanes.into_iter().fold(0, mixed)
    }
}

fn mixed(sum: u64, number: u64) -> u64 {
    // 2^64 divided by the golden ratio, as in Fibonacci hashing; any odd factor is one-to-one.
    (sum ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    #[test]
    fn every_flipped_bit_and_every_exchange_changes_the_checksum() {
        let numbers: Vec<u32> = (0..37_u32).map(|number| number.wrapping_mul(0x01f3_5a1d)).collect();
        let sum = |numbers: &[u32]| {
            let mut sum = Checksum::default();
            numbers.chunks(11).for_each(|part| sum.add(part));
            sum.value()
        };
        let mut all = std::collections::BTreeSet::from([sum(&numbers)]);
        for place in 0..numbers.len() {
            for bit in 0..32 {
                let mut other = numbers.clone();
                other[place] ^= 1 << bit;
                assert!(all.insert(sum(&other)), "bit {bit} of number {place}");
            }
            for with in 0..place {
                let mut other = numbers.clone();
                other.swap(place, with);
                assert!(all.insert(sum(&other)), "{place} with {with}");
            }
        }
    }
}
