//! Devices as CUDA and NVML number them.

use kiln::metrics::utilization::index;

#[test]
fn a_device_is_found_by_what_cuda_says_about_it() {
    let uuids = ["GPU-89aa", "GPU-89bb", "GPU-12cc", "GPU-34dd"].map(String::from);
    let find = |device, visible| index(device, visible, Some("PCI_BUS_ID"), &uuids);
    assert_eq!((find(1, None), find(4, None)), (Some(1), None));
    assert_eq!((find(0, Some("3,1")), find(1, Some("3,1")), find(2, Some("3,1"))), (Some(3), Some(1), None));
    assert_eq!((find(0, Some("GPU-12")), find(1, Some("0, GPU-89bb"))), (Some(2), Some(1)));
    assert_eq!((find(0, Some("GPU-89")), find(0, Some("GPU-ff"))), (None, None), "two begin so, none does");
    assert_eq!((find(0, Some("")), find(0, Some("-1")), find(0, Some("7"))), (None, None, None));
}

#[test]
fn numbers_of_another_order_say_nothing() {
    let uuids = ["GPU-89aa", "GPU-89bb"].map(String::from);
    for order in [None, Some("FASTEST_FIRST")] {
        assert_eq!((index(0, None, order, &uuids), index(0, Some("1"), order, &uuids)), (None, None));
        assert_eq!(index(0, Some("GPU-89bb"), order, &uuids), Some(1));
        assert_eq!(index(0, None, order, &uuids[..1]), Some(0), "there is no other one");
    }
}
