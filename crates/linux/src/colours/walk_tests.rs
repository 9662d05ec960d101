use super::*;

fn mapping(range: Range<u64>) -> Mapping {
    Mapping {
        range,
        ..Mapping::default()
    }
}

#[test]
fn a_side_area_lies_within_the_largest_gap() {
    const GIB: u64 = 1 << 30;
    let all = [
        mapping(4096..8192),
        mapping(GIB..2 * GIB),
        mapping(8 * GIB..9 * GIB),
        mapping(10 * GIB..11 * GIB),
        mapping(0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000),
    ];
    for number in [0, 1, 1_000, u64::MAX] {
        let at = gap(&all, 1 << 20, number).unwrap();
        assert!((7 * GIB / 2..=13 * GIB / 2).contains(&at), "{at:#x}");
        assert_eq!(at % (2 << 20), 0);
    }
    assert_ne!(gap(&all, 1 << 20, 1), gap(&all, 1 << 20, 2));
    assert_eq!(gap(&all[..2], GIB, 0), None);
    assert_eq!(gap(&all[..1], 4096, 0), None);
    let close = [mapping(0..4096), mapping(4096..8192)];
    assert_eq!(gap(&close, 4096, 0), None);
}
