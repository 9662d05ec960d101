//! Which physical addresses the memory of each node has: the zones of `/proc/zoneinfo`
//! (mm/vmstat.c), and the memory blocks of sysfs (Documentation/admin-guide/mm/memory-hotplug.rst).
//! How far nodes are from each other (Documentation/ABI/stable/sysfs-devices-node).
//!
//! A zone spans the holes between its pages, and these may belong to another node. A block that two
//! nodes share belongs to both. So each source names at least what a node has. What both name is
//! closer.

use std::collections::BTreeMap;

use quell_types::address::Ranges;

use crate::error::{Error, Result};
use crate::root::Files;

const ZONEINFO: &str = "/proc/zoneinfo";
const NODES: &str = "/sys/devices/system/node";
const BLOCK_SIZE: &str = "/sys/devices/system/memory/block_size_bytes";

/// For each node with memory: all addresses of its memory, and perhaps holes between them. Empty
/// where no file says it. `page` is the size of a page in bytes.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn ranges(files: &dyn Files, page: u64) -> Result<BTreeMap<u32, Ranges>> {
    let zones = zones(files, page)?;
    let mut found = BTreeMap::new();
    for (node, zones) in zones {
        let all = match blocks(files, node)? {
            Some(blocks) => zones.intersection(&blocks),
            None => zones,
        };
        if !all.is_empty() {
            found.insert(node, all);
        }
    }
    Ok(found)
}

/// The spans of each node's zones.
fn zones(files: &dyn Files, page: u64) -> Result<BTreeMap<u32, Ranges>> {
    let Some(text) = files.optional(ZONEINFO)? else {
        return Ok(BTreeMap::new());
    };
    let wrong = |line: &str| {
        Error::malformed(
            ZONEINFO,
            line,
            "zones such as `Node 0, zone Normal` with `spanned` and `start_pfn:`",
        )
    };
    let mut spans: BTreeMap<u32, Vec<std::ops::Range<u64>>> = BTreeMap::new();
    let mut zone: Option<(u32, u64)> = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), Some(number)) => {
                let number = number.trim_end_matches(',').parse();
                zone = Some((number.map_err(|_| wrong(line))?, 0));
            }
            (Some("spanned"), Some(pages)) => {
                let Some((_, spanned)) = &mut zone else {
                    return Err(wrong(line));
                };
                *spanned = pages.parse().map_err(|_| wrong(line))?;
            }
            (Some("start_pfn:"), Some(first)) => {
                let Some((node, spanned)) = zone.take() else {
                    return Err(wrong(line));
                };
                let first: u64 = first.parse().map_err(|_| wrong(line))?;
                let end = first.checked_add(spanned);
                let end = end.and_then(|end| end.checked_mul(page));
                let (start, end) = first
                    .checked_mul(page)
                    .zip(end)
                    .ok_or_else(|| wrong(line))?;
                spans.entry(node).or_default().push(start..end);
            }
            _ => {}
        }
    }
    let ranges = spans
        .into_iter()
        .map(|(node, all)| (node, Ranges::new(all)));
    Ok(ranges.collect())
}

/// The memory blocks of a node. `None` where the kernel has no blocks (memory cannot be plugged).
fn blocks(files: &dyn Files, node: u32) -> Result<Option<Ranges>> {
    let Some(text) = files.optional(BLOCK_SIZE)? else {
        return Ok(None);
    };
    let wrong = || Error::malformed(BLOCK_SIZE, &text, "a hexadecimal size");
    let size = u64::from_str_radix(&text, 16).map_err(|_| wrong())?;
    let names = files.names(&format!("{NODES}/node{node}"))?;
    let numbers = names.iter().filter_map(|name| name.strip_prefix("memory"));
    let ranges = numbers.filter_map(|number| {
        let start = number.parse::<u64>().ok()?.checked_mul(size)?;
        Some(start..start.checked_add(size)?)
    });
    let ranges = Ranges::new(ranges);
    Ok((!ranges.is_empty()).then_some(ranges))
}

/// The nodes whose memory is as near to a node as its own, itself included. `online` are all nodes,
/// ascending. Only itself where no file says it.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn near(files: &dyn Files, node: u32, online: &[u32]) -> Result<Vec<u32>> {
    let path = format!("{NODES}/node{node}/distance");
    let Some(text) = files.optional(&path)? else {
        return Ok(vec![node]);
    };
    let distances: Option<Vec<u32>> = text
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    // One distance for each node that is online, in their order.
    let distances = distances.filter(|all| all.len() == online.len());
    let own = online.iter().position(|n| *n == node);
    let Some((distances, own)) = distances.zip(own) else {
        return Err(Error::malformed(
            &path,
            &text,
            "a distance for each node that is online",
        ));
    };
    let near = online.iter().zip(&distances);
    let near = near.filter(|(_, distance)| **distance <= distances[own]);
    Ok(near.map(|(node, _)| *node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    const TWO: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 12
  pages free     3840
        min      68
        spanned  4095
        present  3999
        managed  3840
        protection: (0, 2991, 2991)
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone    DMA32
  pages free     100
        spanned  258048
        present  258048
  start_pfn:           4096
Node 0, zone   Normal
  pages free     0
        spanned  0
        present  0
  start_pfn:           0
Node 1, zone    DMA32
        spanned  262112
  start_pfn:           262144
";

    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let kernel = Kernel::at(dir.path());
        (dir, kernel)
    }

    fn told(files: &[(&str, &str)]) -> Vec<(u32, String)> {
        let (_dir, kernel) = root(files);
        let text = |all: &Ranges| {
            let each: Vec<String> = all
                .iter()
                .map(|r| format!("{:#x}-{:#x}", r.start, r.end))
                .collect();
            each.join(" ")
        };
        let found = ranges(&kernel, 4096).unwrap();
        found.iter().map(|(node, all)| (*node, text(all))).collect()
    }

    #[test]
    fn the_zones_of_a_node_are_its_memory() {
        assert_eq!(
            told(&[("proc/zoneinfo", TWO)]),
            [
                (0, "0x1000-0x40000000".to_owned()),
                (1, "0x40000000-0x7ffe0000".to_owned()),
            ]
        );
        assert_eq!(told(&[]), []);
    }

    /// Nodes that take turns: the zone of each spans the other's memory, and blocks say which is
    /// whose.
    #[test]
    fn blocks_tell_nodes_that_take_turns_apart() {
        let zones = "Node 0, zone Normal\n spanned 786432\n start_pfn: 0\n\
                     Node 1, zone Normal\n spanned 786432\n start_pfn: 262144\n";
        let spans = told(&[("proc/zoneinfo", zones)]);
        assert_eq!(spans[0].1, "0x0-0xc0000000");
        let blocks = [
            ("sys/devices/system/memory/block_size_bytes", "40000000\n"),
            ("sys/devices/system/node/node0/memory0/x", ""),
            ("sys/devices/system/node/node0/memory2/x", ""),
            ("sys/devices/system/node/node0/memory_side_cache/x", ""),
            ("sys/devices/system/node/node1/memory1/x", ""),
            ("sys/devices/system/node/node1/memory3/x", ""),
        ];
        let files: Vec<_> = blocks
            .into_iter()
            .chain([("proc/zoneinfo", zones)])
            .collect();
        assert_eq!(
            told(&files),
            [
                (0, "0x0-0x40000000 0x80000000-0xc0000000".to_owned()),
                (1, "0x40000000-0x80000000 0xc0000000-0x100000000".to_owned()),
            ]
        );
    }

    #[test]
    fn near_nodes_are_as_near_as_the_nodes_own_memory() {
        let distance = |text: &str| {
            let (_dir, kernel) = root(&[("sys/devices/system/node/node3/distance", text)]);
            near(&kernel, 3, &[0, 3, 4])
        };
        assert_eq!(distance("20 10 10\n").unwrap(), [3, 4]);
        assert!(distance("10 20\n").is_err() && distance("10 20 x\n").is_err());
        let (_dir, kernel) = root(&[]);
        assert_eq!(near(&kernel, 3, &[0, 3]).unwrap(), [3]);
    }

    #[test]
    fn damaged_zones_are_refused() {
        for wrong in [
            "Node x, zone Normal\n",
            " spanned 3\n",
            " start_pfn: 1\n",
            "Node 0, zone Normal\n spanned many\n",
            "Node 0, zone Normal\n spanned 9\n start_pfn: 18446744073709551615\n",
        ] {
            let (_dir, kernel) = root(&[("proc/zoneinfo", wrong)]);
            let said = ranges(&kernel, 4096).unwrap_err().to_string();
            assert!(said.contains("/proc/zoneinfo"), "{wrong}: {said}");
        }
    }
}
