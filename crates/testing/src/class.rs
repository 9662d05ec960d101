//! What a test needs of the machine: its name says it.

/// Packages whose unit tests look at the machine that they run on: who changes its CPUs meanwhile
/// is in their way.
const MACHINE: [&str; 3] = ["kernel", "linux", "workload"];

/// What may run next to a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// How much nicer its tests are than the program that runs them: what only computes leaves the
    /// CPUs to who waits for answers.
    pub fn nicer(self) -> i32 {
        if self == Self::Pure { 10 } else { 0 }
    }

    /// Of a test. The innermost module with the name of a class decides, then the program. Of a
    /// unit test only modules below `tests` count: those above have the name of what they test.
    pub fn of(package: &str, target: &str, test: &str) -> Self {
        let below = test.rsplit_once("::tests::").map_or("", |(_, below)| below);
        let modules = if target == "lib" { below } else { test };
        let modules = modules.rsplit("::").skip(1);
        modules
            .chain([target])
            .find_map(|name| Self::ALL.into_iter().find(|class| class.name() == name))
            .unwrap_or(if target == "lib" && MACHINE.contains(&package) {
                Self::Live
            } else {
                Self::Pure
            })
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn the_innermost_name_of_a_class_decides() {
        assert_eq!(Class::of("cli", "lib", "tests::a"), Class::Pure);
        assert_eq!(Class::of("cli", "live", "tests::a"), Class::Live);
        assert_eq!(Class::of("cli", "live", "measured::a"), Class::Measured);
        assert_eq!(Class::of("cli", "lab", "live::pure::lab"), Class::Pure);
    }

    #[test]
    fn unit_tests_that_look_at_the_machine_are_live() {
        assert_eq!(Class::of("linux", "lib", "tests::a"), Class::Live);
        assert_eq!(Class::of("linux", "conformance", "a"), Class::Pure);
        let silent = Class::of("workload", "lib", "probe::tests::measured::a");
        assert_eq!(silent, Class::Measured);
    }

    #[test]
    fn a_unit_test_is_not_what_it_tests() {
        assert_eq!(Class::of("cli", "lib", "measured::tests::a"), Class::Pure);
        assert_eq!(
            Class::of("cli", "lib", "measured::tests::live::a"),
            Class::Live
        );
        assert_eq!(Class::of("cli", "lib", "measured::a"), Class::Pure);
    }
}
