//! What the documents say of the tree: links and anchors lead somewhere, items that they name
//! exist, and pages stay short.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::architecture::imports::{crates, sources};

/// The largest size of `docs/architecture.md`, in bytes.
const OVERVIEW: usize = 8192;
/// The largest size of a page in `docs/design`, in bytes.
const DESIGN: usize = 6144;

/// The Markdown files below a folder of the repository: paths from its top, and texts.
pub fn pages(below: &str) -> BTreeMap<PathBuf, String> {
    let top = crates().join("..");
    let mut found = BTreeMap::new();
    let mut folders = vec![top.join(below)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            // Hidden folders, what was built, and records of runs are not tracked.
            if path.is_dir() && !name.starts_with('.') && !["target", "runs"].contains(&name) {
                folders.push(path);
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(&top).unwrap().to_owned(), text);
            }
        }
    }
    found
}

/// A text without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let outside = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    };
    text.lines().filter(outside).collect::<Vec<_>>().join("\n")
}

/// What is quoted in backticks outside of fenced blocks.
pub fn quoted(text: &str) -> Vec<String> {
    let prose = prose(text);
    let quoted = prose.split('`').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// The targets of links.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page, by GitHub's rule: lower case, letters, digits, `-` and `_`, a space is a
/// hyphen, and a second heading of the same name gets `-1`.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for line in prose(text).lines() {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        // Of a link in a heading its text counts.
        let heading: String = heading
            .split("](")
            .enumerate()
            .map(|(n, part)| match n {
                0 => part,
                _ => part.split_once(')').map_or(part, |(_, rest)| rest),
            })
            .collect();
        let slug = |c: char| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
            _ => None,
        };
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(slug)
            .collect();
        let times = seen.entry(slug.clone()).or_default();
        found.push(match *times {
            0 => slug,
            n => format!("{slug}-{n}"),
        });
        *times += 1;
    }
    found
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop(), "{}", path.display()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Why a link of a page leads nowhere, if it does.
fn broken(pages: &BTreeMap<PathBuf, String>, page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => plain(&page.parent().unwrap().join(path)),
    };
    if !pages.contains_key(&target) && !crates().join("..").join(&target).exists() {
        return Some(format!("{}: {link}: no such file", page.display()));
    }
    let there = |text: &String| anchors(text).iter().any(|a| a == anchor);
    let found = anchor.is_empty() || pages.get(&target).is_some_and(there);
    (!found).then(|| format!("{}: {link}: no such heading", page.display()))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages("");
    assert!(pages.len() > 60, "{}", pages.len());
    let links = pages.iter().flat_map(|(page, text)| {
        let links = links(text).into_iter();
        links.map(move |link| (page.as_path(), link))
    });
    let broken: Vec<String> = links
        .filter_map(|(page, link)| broken(&pages, page, &link))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The beginning of a quotation that is a path of items: `a::b { c }` is `a` and `b`.
fn item(quoted: &str) -> Option<Vec<&str>> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let end = quoted.find(|c: char| !word(c) && c != ':');
    let path: Vec<&str> = quoted[..end.unwrap_or(quoted.len())].split("::").collect();
    let named = |part: &&str| !part.is_empty() && part.chars().all(word);
    (path.len() > 1 && path.iter().all(named)).then_some(path)
}

/// What a source declares, and every word of it.
struct Declared<'t> {
    file: &'t str,
    items: HashSet<&'t str>,
    words: HashSet<&'t str>,
}

impl<'t> Declared<'t> {
    /// Items follow their keyword. A variant is a line that begins with its name.
    fn by((file, text): &'t (String, String)) -> Self {
        const KINDS: [&str; 8] = [
            "fn", "struct", "enum", "trait", "mod", "const", "static", "type",
        ];
        let (mut items, mut words) = (HashSet::new(), HashSet::new());
        for line in text.lines() {
            let mut before = "";
            let all = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            for word in all.filter(|word| !word.is_empty()) {
                let rest = line.trim_start().strip_prefix(word);
                let variant = before.is_empty()
                    && word.starts_with(char::is_uppercase)
                    && rest.is_some_and(|r| [",", " {", "("].iter().any(|end| r.starts_with(end)));
                if variant || KINDS.contains(&before) {
                    items.insert(word);
                }
                words.insert(word);
                before = word;
            }
        }
        let file = file.trim_end_matches(".rs");
        Self { file, items, words }
    }

    /// Whether it declares the last part of a path, and the part before it is a folder or file
    /// above it, or a word of it.
    fn has(&self, path: &[&str]) -> bool {
        let [.., above, name] = path else {
            return false;
        };
        let above = above.strip_prefix("quell_").unwrap_or(above);
        self.items.contains(name)
            && (self.words.contains(above) || self.file.split('/').any(|part| part == above))
    }
}

#[test]
fn the_items_that_the_design_names_exist() {
    let all = sources(&crates());
    let all: Vec<Declared<'_>> = all.iter().map(Declared::by).collect();
    let mut pages = pages("docs/design");
    pages.extend(self::pages("docs/decisions"));
    for page in ["docs/architecture.md", "docs/glossary.md"] {
        let text = fs::read_to_string(crates().join("..").join(page)).unwrap();
        pages.insert(page.into(), text);
    }
    let mut named = 0;
    let mut missing = Vec::new();
    for (page, text) in &pages {
        for quoted in quoted(text) {
            let Some(path) = item(&quoted) else { continue };
            named += 1;
            if !all.iter().any(|source| source.has(&path)) {
                missing.push(format!("{}: {quoted}", page.display()));
            }
        }
    }
    assert!(named > 150, "{named}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_pages_of_the_design_are_short() {
    let mut long = Vec::new();
    for (page, text) in pages("docs") {
        let most = match page.parent().and_then(Path::to_str) {
            Some("docs") if page.ends_with("architecture.md") => OVERVIEW,
            Some("docs/design") => DESIGN,
            _ => continue,
        };
        if text.len() > most {
            long.push((page, text.len()));
        }
    }
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn what_is_read_of_a_page_is_what_it_says() {
    let text =
        "# A `b`, c\n```\n# not\n[x](gone.md)\n```\n## [D](e.md) f\n## D f\n[g](#a-b-c) `h::i`\n";
    assert_eq!(anchors(text), ["a-b-c", "d-f", "d-f-1"]);
    assert_eq!(links(text), ["e.md", "#a-b-c"]);
    let page = Path::new("docs/page.md");
    let pages = BTreeMap::from([(page.to_owned(), text.to_owned())]);
    assert_eq!(broken(&pages, page, "#a-b-c"), None);
    assert!(broken(&pages, page, "#gone").is_some());
    assert!(broken(&pages, page, "gone.md").is_some());
    assert_eq!(
        item("Event::Promise { id }"),
        Some(vec!["Event", "Promise"])
    );
    assert_eq!(item("a.b"), None);
    let source = (
        "a/src/b.rs".to_owned(),
        "enum C {\n    D,\n}\nfn e() {}\n".to_owned(),
    );
    let source = Declared::by(&source);
    for there in [["b", "C"], ["a", "e"], ["C", "D"]] {
        assert!(source.has(&there), "{there:?}");
    }
    for gone in [["b", "D2"], ["x", "C"], ["b", "en"]] {
        assert!(!source.has(&gone), "{gone:?}");
    }
}
