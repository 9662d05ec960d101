//! What a test needs of the machine: its name says it.

/// What may run next to a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Needs nothing: no rights, any order, next to anything.
    Pure,
    /// Has a virtual machine of its own: next to anything but silence.
    Lab,
    /// Changes the machine: one at a time, next to pure tests and the lab.
    Live,
    /// Measures the machine: nothing runs next to it.
    Measured,
}

impl Class {
    /// All of them, in the order in which a run has most of each.
    pub const ALL: [Self; 4] = [Self::Pure, Self::Lab, Self::Live, Self::Measured];

    /// As in names of test programs and modules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Lab => "lab",
            Self::Live => "live",
            Self::Measured => "measured",
        }
    }

    /// Of a test. The innermost module with the name of a class decides, then the program. Of a
    /// unit test only modules below `tests` count: those above have the name of what they test.
    pub fn of(target: &str, test: &str) -> Self {
        let below = test.rsplit_once("::tests::").map_or("", |(_, below)| below);
        let modules = if target == "lib" { below } else { test };
        let modules = modules.rsplit("::").skip(1);
        modules
            .chain([target])
            .find_map(|name| Self::ALL.into_iter().find(|class| class.name() == name))
            .unwrap_or(Self::Pure)
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn the_innermost_name_of_a_class_decides() {
        assert_eq!(Class::of("lib", "tests::a"), Class::Pure);
        assert_eq!(Class::of("live", "tests::a"), Class::Live);
        assert_eq!(Class::of("live", "measured::a"), Class::Measured);
        assert_eq!(Class::of("lab", "live::pure::lab"), Class::Pure);
    }

    #[test]
    fn a_unit_test_is_not_what_it_tests() {
        assert_eq!(Class::of("lib", "measured::tests::a"), Class::Pure);
        assert_eq!(Class::of("lib", "measured::tests::live::a"), Class::Live);
        assert_eq!(Class::of("lib", "measured::a"), Class::Pure);
    }
}
