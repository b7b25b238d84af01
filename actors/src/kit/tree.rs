//! A snapshot of the running tree, for the admin endpoint. Reads the statistics only: it answers while every actor is busy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::stat::{Registry, Stat};

#[derive(Debug, Clone)]
pub struct TreeNode {
    pub path: Arc<str>,
    pub kind: &'static str,
    pub status: &'static str,
    pub depth: usize,
    pub capacity: Option<usize>,
    pub handled: u64,
    pub restarts: u32,
    pub current: Option<(&'static str, Duration)>,
    pub last_progress: Duration,
    pub children: Vec<TreeNode>,
}

/// The roots of the running tree; places whose parent is not listed count as roots. Siblings come in order of path.
pub fn snapshot(registry: &Registry) -> Vec<TreeNode> {
    let all = registry.all();
    let known: std::collections::HashSet<&str> = all.iter().map(|s| &**s.path()).collect();
    let mut below: HashMap<Option<&str>, Vec<&Arc<Stat>>> = HashMap::new();
    for stat in &all {
        let parent = stat.parent().map(|p| &**p).filter(|p| known.contains(p));
        below.entry(parent).or_default().push(stat);
    }
    branch(None, &below)
}

fn branch(parent: Option<&str>, below: &HashMap<Option<&str>, Vec<&Arc<Stat>>>) -> Vec<TreeNode> {
    let mut nodes: Vec<TreeNode> = below
        .get(&parent)
        .into_iter()
        .flatten()
        .map(|stat| TreeNode {
            path: stat.path().clone(),
            kind: stat.kind(),
            status: stat.status().as_str(),
            depth: stat.depth(),
            capacity: stat.capacity(),
            handled: stat.handled(),
            restarts: stat.restarts(),
            current: stat.current(),
            last_progress: stat.last_progress(),
            children: branch(Some(stat.path()), below),
        })
        .collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

/// The tree as text, drawn with lines.
pub fn draw(roots: &[TreeNode]) -> String {
    let mut out = String::new();
    for root in roots {
        line(&mut out, "", "", root, &root.path);
        draw_below(&mut out, "", root);
    }
    out
}

fn draw_below(out: &mut String, indent: &str, node: &TreeNode) {
    for (index, child) in node.children.iter().enumerate() {
        let last = index + 1 == node.children.len();
        let name = child.path.get(node.path.len() + 1..).unwrap_or(&child.path);
        line(out, indent, if last { "└─ " } else { "├─ " }, child, name);
        draw_below(out, &format!("{indent}{}", if last { "   " } else { "│  " }), child);
    }
}

fn line(out: &mut String, indent: &str, arm: &str, node: &TreeNode, name: &str) {
    let left = format!("{indent}{arm}{name}");
    let pad = 52_usize.saturating_sub(left.chars().count());
    let mut right = format!("{:<10} handled {:>7}", node.status, node.handled);
    match (node.depth, node.capacity) {
        (0, None) => {}
        (depth, None) => right += &format!("  queue {depth}"),
        (depth, Some(capacity)) => right += &format!("  queue {depth}/{capacity}"),
    }
    if node.restarts > 0 {
        right += &format!("  restarts {}", node.restarts);
    }
    if let Some((message, since)) = node.current {
        right += &format!("  in {message} for {} ms", since.as_millis());
    }
    *out += &format!("{left}{:pad$} {right}\n", "");
}
