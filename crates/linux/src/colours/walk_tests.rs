use super::*;

fn mapping(range: std::ops::Range<u64>) -> Mapping {
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
    assert_eq!(gap(&all, 1 << 20), Some(5 * GIB));
    assert_eq!(gap(&all[..2], GIB), None);
    assert_eq!(gap(&all[..1], 4096), None);
    assert_eq!(gap(&[mapping(0..4096), mapping(4096..8192)], 4096), None);
}
