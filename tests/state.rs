//! State dictionaries: their files are exact, and a damaged one is an error.

use std::path::Path;

use kiln_engine::state::{HostTensor, StateDict, from_safetensors, sha256, to_safetensors};
use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

fn dictionary() -> impl Strategy<Value = StateDict> {
    let floats = prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..6)
        .prop_map(|data| HostTensor::F32 { shape: vec![data.len(), 1], data });
    let integers =
        prop::collection::vec(any::<i64>(), 0..6).prop_map(|data| HostTensor::I64 { shape: vec![1, data.len()], data });
    let scalar = any::<f32>().prop_map(|x| HostTensor::F32 { shape: vec![], data: vec![x] });
    prop::collection::btree_map("[a-z.\"é]{1,8}", prop_oneof![floats, integers, scalar], 0..5)
}

proptest! {
    #[test]
    fn a_dictionary_comes_back_from_its_file_bit_for_bit(tensors in dictionary()) {
        let metadata = [("b".to_string(), "2".to_string()), ("a".to_string(), "1".to_string())];
        let (back, pairs) = from_safetensors(&to_safetensors(&tensors, &metadata), Path::new("x")).unwrap();
        prop_assert_eq!(sha256(&back), sha256(&tensors));
        prop_assert_eq!(to_safetensors(&back, &pairs), to_safetensors(&tensors, &metadata));
    }

    #[test]
    fn cut_or_flipped_bytes_are_an_error_or_other_numbers_but_never_a_panic(
        tensors in dictionary(), at in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        let mut bytes = to_safetensors(&tensors, &[]);
        let at = at.index(bytes.len());
        let cut = from_safetensors(&bytes[..at], Path::new("w.safetensors")).unwrap_err();
        prop_assert!(cut.to_string().starts_with("'w.safetensors' is not a readable safetensors file"));
        bytes[at] ^= 1 << bit;
        let _ = from_safetensors(&bytes, Path::new("w.safetensors"));
        let _ = from_safetensors(&bytes[at..], Path::new("w.safetensors"));
    }
}

#[test]
fn different_dictionaries_have_different_fingerprints() {
    let of = |name: &str, shape: &[usize], data: &[f32]| {
        sha256(&StateDict::from([(name.into(), HostTensor::F32 { shape: shape.into(), data: data.into() })]))
    };
    let one = of("a", &[2], &[1.0, 0.0]);
    for other in [of("b", &[2], &[1.0, 0.0]), of("a", &[1, 2], &[1.0, 0.0]), of("a", &[2], &[1.0, -0.0])] {
        assert_ne!(one, other);
    }
    assert_eq!(one.len(), 64);
}

#[test]
fn smaller_and_larger_types_are_read_as_f32_and_i64() {
    let all_halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let tensors = [
        ("half", Dtype::F16, vec![65_536], all_halves),
        ("brain", Dtype::BF16, vec![1], 0xc049u16.to_le_bytes().to_vec()),
        ("double", Dtype::F64, vec![], 0.1f64.to_le_bytes().to_vec()),
        ("byte", Dtype::U8, vec![2], vec![0, 255]),
        ("int", Dtype::I32, vec![1], (-5i32).to_le_bytes().to_vec()),
    ];
    let views = tensors.iter().map(|(n, d, s, b)| (*n, TensorView::new(*d, s.clone(), b).unwrap()));
    let (read, _) = from_safetensors(&safetensors::serialize(views, None).unwrap(), Path::new("x")).unwrap();
    assert_eq!(read["brain"].as_f32(), Some(&[-3.140625f32][..]));
    assert_eq!(read["double"], HostTensor::F32 { shape: vec![], data: vec![0.1] });
    assert_eq!(read["byte"], HostTensor::I64 { shape: vec![2], data: vec![0, 255] });
    assert_eq!(read["int"].as_i64(), Some(&[-5i64][..]));
    for (bits, value) in read["half"].as_f32().unwrap().iter().enumerate() {
        let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64 / 1024.0);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-14),
            31 => (1.0 / 0.0) * if fraction == 0.0 { 1.0 } else { f64::NAN },
            _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
        };
        let expected = if bits >> 15 == 1 { -magnitude } else { magnitude } as f32;
        assert!(expected == *value || expected.is_nan() && value.is_nan(), "{bits:#x}: {value}");
    }
}

#[test]
fn a_type_that_cannot_be_read_is_named_with_its_tensor_and_file() {
    let view = TensorView::new(Dtype::BOOL, vec![1], &[1]).unwrap();
    let bytes = safetensors::serialize([("mask", view)], None).unwrap();
    let error = from_safetensors(&bytes, Path::new("m.safetensors")).unwrap_err().to_string();
    assert!(error.contains("'m.safetensors'") && error.contains("'mask'") && error.contains("'BOOL'"), "{error}");
}
