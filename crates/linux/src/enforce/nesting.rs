//! Cgroups that must not be acted upon: limiting, freezing or killing a cgroup affects all that
//! lives in it and below.

use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;

use crate::group_cgroups::{CgroupDir, GroupCgroups};

/// Refuses a cgroup that Quell itself runs in.
pub(super) fn not_ours(files: &dyn Files, group: &str, place: &CgroupDir) -> Result<()> {
    let own = place.hierarchy.dir_of(files, std::process::id())?;
    if own.is_some_and(|own| place.holds(&own)) {
        return Err(Error::refused_with(
            format!(
                "group {group}: Quell itself runs in {}, and would be limited, frozen or killed along with it",
                place.dir
            ),
            "start it from elsewhere, or select a cgroup further down",
        ));
    }
    Ok(())
}

/// Refuses a best-effort group whose cgroup has a critical group in it.
pub(super) fn apart(neighbour: &GroupCgroups, critical: &GroupCgroups) -> Result<()> {
    for above in &neighbour.places {
        let inside = |p: &&CgroupDir| above.holds(&p.dir);
        if let Some(inside) = critical.places.iter().find(inside) {
            return Err(Error::refused_with(
                format!(
                    "group {}: the critical group {} lives in {}, which is in {}, and would be limited, frozen or killed \
                     along with it",
                    neighbour.group, critical.group, inside.dir, above.dir
                ),
                "select a cgroup further down for the one, or start the other from elsewhere",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use quell_kernel::cgroup::{Hierarchy, Version};

    use super::*;

    pub(in crate::enforce) fn group_cgroups(group: &str, dir: &str) -> GroupCgroups {
        let hierarchy = Hierarchy {
            version: Version::V2,
            mount: "/cg".into(),
            top: "/".into(),
            controllers: vec!["memory".into()],
            own: "/".into(),
        };
        GroupCgroups {
            group: group.into(),
            places: vec![CgroupDir {
                hierarchy,
                dir: dir.into(),
                ours: false,
                braked: false,
            }],
        }
    }

    #[test]
    fn a_critical_group_below_a_neighbour_is_refused() {
        let neighbour = group_cgroups("others", "/cg/system.slice");
        let below = group_cgroups("app", "/cg/system.slice/app.service");
        let why = apart(&neighbour, &below).unwrap_err().to_string();
        for needed in [
            "others",
            "app",
            "/cg/system.slice/app.service",
            "/cg/system.slice,",
        ] {
            assert!(why.contains(needed), "{why}");
        }
        apart(&below, &neighbour).unwrap();
        apart(&neighbour, &group_cgroups("app", "/cg/system.slice2")).unwrap();
    }
}
