"""The programs that scripts/programs.py profiles, and how their inputs are made.

Inputs are made of fixed seeds and of files of Debian's packages, so they are the same wherever the
versions are. Debian 12 packages beyond a build machine's own:

  apt-get install --no-install-recommends qemu-user liblemon-utils gnugo hmmer2 stockfish libquantum-dev \\
    x264 iverilog routino xsltproc povray calculix-ccx glpk-utils pocketsphinx pocketsphinx-en-us \\
    flite fasttree openfoam meep minisat bwa sqlite3 ffmpeg
"""

import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable


@dataclass
class Program:
    name: str
    like: str
    package: str
    command: list[str]
    input: str
    make: Callable[[Path], None]
    stdin: str = ""
    env: dict[str, str] = field(default_factory=dict)
    status: tuple[int, ...] = (0,)

    def shown(self):
        text = " ".join(word if word and not set(word) & set(" ;'") else f"'{word}'" for word in self.command)
        return f"{text} < {self.stdin}" if self.stdin else text


def run(folder, *command, stdin=None, out=None):
    """Runs a command that makes an input."""
    source = open(folder / stdin) if stdin else subprocess.DEVNULL
    target = open(folder / out, "w") if out else subprocess.DEVNULL
    subprocess.run([str(word) for word in command], cwd=folder, check=True, stdin=source, stdout=target,
                   stderr=subprocess.DEVNULL)


def files(folder, name, pattern, most, under="/usr/share/perl/5.36.0"):
    """The beginning of all files of a folder, in order."""
    data = b"".join(path.read_bytes() for path in sorted(Path(under).rglob(pattern)) if path.is_file())
    (folder / name).write_bytes(data[:most])


def corpus(folder):
    files(folder, "corpus", "*", 5_000_000)


def binary(folder):
    data = Path("/usr/lib/gcc/x86_64-linux-gnu/12/cc1").read_bytes()
    (folder / "corpus").write_bytes(data[4_000_000:5_500_000])


def pods(folder):
    files(folder, "all.pod", "*.pod", 1_000_000)


UNIT = """
#include <algorithm>
#include <vector>
template class std::vector<double>;
void sorts(std::vector<int> &a) { std::sort(a.begin(), a.end()); }
"""


def unit(folder):
    (folder / "unit.cc").write_text(UNIT)
    run(folder, "g++-12", "-E", "-O2", "unit.cc", "-o", "unit.ii")


def flow(folder):
    """Vehicles that serve trips in time: a minimum cost flow, as in the study that mcf is from."""
    draw = random.Random(1)
    trips = 15000
    arcs = []
    source, sink = 2 * trips + 1, 2 * trips + 2
    for trip in range(trips):
        begin, end = 2 * trip + 1, 2 * trip + 2
        arcs.append((source, begin, 1, 1000 + draw.randrange(500)))
        arcs.append((end, sink, 1, draw.randrange(500)))
        for _ in range(14):
            other = trip + 1 + int(draw.expovariate(1 / 200))
            if other < trips:
                arcs.append((end, 2 * other + 1, 1, draw.randrange(1, 800)))
    with open(folder / "flow.min", "w") as out:
        arcs.append((source, sink, trips, 0))
        out.write(f"p min {sink} {len(arcs)}\nn {source} {trips}\nn {sink} -{trips}\n")
        for trip in range(trips):
            out.write(f"n {2 * trip + 1} -1\nn {2 * trip + 2} 1\n")
        # Every trip is served: what arrives at its begin leaves from its end.
        for tail, head, most, cost in arcs:
            out.write(f"a {tail} {head} 0 {most} {cost}\n")


def go(folder):
    lines = ["boardsize 13", "level 8"] + ["genmove black", "genmove white"] * 5 + ["quit"]
    (folder / "game.gtp").write_text("\n".join(lines) + "\n")


AMINO = "ACDEFGHIKLMNPQRSTVWY"


def genes(folder):
    draw = random.Random(2)
    family = draw.choices(AMINO, k=180)
    with open(folder / "family.fa", "w") as out:
        for n in range(20):
            member = [draw.choice(AMINO) if draw.random() < 0.35 else one for one in family]
            member = ["-" if draw.random() < 0.03 else one for one in member]
            out.write(f">m{n}\n{''.join(member)}\n")
    run(folder, "hmm2build", "-F", "--amino", "family.hmm", "family.fa")
    with open(folder / "proteins.fa", "w") as out:
        for n in range(300):
            text = "".join(draw.choices(AMINO, k=draw.randrange(100, 700)))
            out.write(f">p{n}\n{text}\n")


def nothing(_):
    """The program brings its input."""


SHOR = r"""
#include <quantum.h>
#include <stdio.h>
int main(void) {
    const int N = 143, x = 3;
    int width = quantum_getwidth(N * N), swidth = quantum_getwidth(N);
    quantum_reg reg = quantum_new_qureg(0, width);
    for (int i = 0; i < width; i++) quantum_hadamard(i, &reg);
    quantum_addscratch(3 * swidth + 2, &reg);
    quantum_exp_mod_n(N, x, width, swidth, &reg);
    for (int i = 0; i < 3 * swidth + 2; i++) quantum_bmeasure(0, &reg);
    quantum_qft(width, &reg);
    printf("%d states\n", reg.size);
    quantum_delete_qureg(&reg);
    return 0;
}
"""


def shor(folder):
    (folder / "shor.c").write_text(SHOR)
    run(folder, "gcc", "-O2", "-fopenmp", "-o", "shor", "shor.c", "-lquantum", "-lm")


def film(folder):
    run(folder, "ffmpeg", "-f", "lavfi", "-i", "mandelbrot=size=352x288:rate=25:end_scale=0.02", "-frames:v", "50",
        "-pix_fmt", "yuv420p", "-f", "rawvideo", "film.yuv")


NETWORK = """
module node(input [31:0] in, output reg [31:0] out);
  parameter ID = 0;
  reg [31:0] queue [0:63];
  reg [5:0] head, tail;
  reg [31:0] seed;
  integer wait_for;
  initial begin head = 0; tail = 0; seed = ID * 7919 + 1; out = 0; end
  always @(in) begin queue[tail] = in ^ seed; tail = tail + 1; end
  always begin
    seed = seed * 1664525 + 1013904223;
    wait_for = 1 + seed[27:23];
    #wait_for;
    if (head != tail) begin out = queue[head] + 1; head = head + 1; end
    else if (seed[31:28] == 0) out = seed;
  end
endmodule
module net;
  wire [31:0] line [0:SIZE];
  genvar n;
  generate for (n = 0; n < SIZE; n = n + 1) begin : ring
    node #(n) one(line[(n * 37 + 11) % SIZE], line[n]);
  end endgenerate
  initial #TIME $finish;
endmodule
"""


def network(folder):
    (folder / "net.v").write_text(NETWORK.replace("SIZE", "900").replace("TIME", "1500"))
    run(folder, "iverilog", "-o", "net.vvp", "net.v")


STOPS = [(0.01, 51.01), (0.72, 51.48), (0.02, 51.47), (0.73, 51.02), (0.05, 51.4), (0.7, 51.1), (0.4, 51.48), (0.3, 51.01),
         (0.71, 51.46)]


def streets(folder):
    """A town of 250 by 250 crossings, some streets missing, some fast."""
    draw = random.Random(3)
    size = 250
    with open(folder / "town.osm", "w") as out:
        out.write('<?xml version="1.0" encoding="UTF-8"?>\n<osm version="0.6" generator="quell">\n')
        for y in range(size):
            for x in range(size):
                lat, lon = 51 + 0.002 * (y + 0.3 * draw.random()), 0.003 * (x + 0.3 * draw.random())
                out.write(f'<node id="{y * size + x + 1}" visible="true" version="1" lat="{lat:.6f}" lon="{lon:.6f}"/>\n')
        way = 1
        for y in range(size):
            for x in range(size):
                for dx, dy in ((1, 0), (0, 1)):
                    if x + dx >= size or y + dy >= size or draw.random() < 0.2:
                        continue
                    kind = draw.choice(["residential", "residential", "tertiary", "secondary"])
                    a, b = y * size + x + 1, (y + dy) * size + x + dx + 1
                    out.write(f'<way id="{way}" visible="true" version="1"><nd ref="{a}"/><nd ref="{b}"/>'
                              f'<tag k="highway" v="{kind}"/><tag k="name" v="Street {way}"/></way>\n')
                    way += 1
        out.write("</osm>\n")
    run(folder, "planetsplitter", "--dir=.", "--prefix=town", "town.osm")


SHEET = """<?xml version="1.0"?>
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:output method="html"/>
<xsl:key name="place" match="order" use="@city"/>
<xsl:template match="/orders"><html><body>
<xsl:for-each select="order[generate-id() = generate-id(key('place', @city)[1])]">
<xsl:sort select="@city"/>
<h1><xsl:value-of select="translate(@city, 'abcdefgh', 'ABCDEFGH')"/></h1>
<table><xsl:for-each select="key('place', @city)">
<xsl:sort select="sum(item/@price)" data-type="number" order="descending"/><xsl:sort select="name"/>
<tr><td><xsl:value-of select="substring-before(concat(name, ' '), ' ')"/></td>
<td><xsl:value-of select="format-number(sum(item/@price) * 1.19, '#.00')"/></td>
<td><xsl:for-each select="item[contains(., 'a')]"><xsl:value-of select="normalize-space(.)"/>, </xsl:for-each></td></tr>
</xsl:for-each></table></xsl:for-each></body></html></xsl:template></xsl:stylesheet>
"""


def orders(folder):
    draw = random.Random(4)
    word = lambda: "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(3, 10)))
    cities = [word() for _ in range(150)]
    with open(folder / "orders.xml", "w") as out:
        out.write("<orders>\n")
        for _ in range(14_000):
            out.write(f'<order city="{draw.choice(cities)}"><name>{word()} {word()}</name>')
            for _ in range(draw.randrange(1, 6)):
                out.write(f'<item price="{draw.randrange(1, 9999) / 100}">{word()} {word()}</item>')
            out.write("</order>\n")
        out.write("</orders>\n")
    (folder / "sheet.xsl").write_text(SHEET)


def scene(folder):
    draw = random.Random(5)
    lines = ["#version 3.7; global_settings { assumed_gamma 1 max_trace_level 6 }",
             "camera { location <0,4,-14> look_at <0,1,0> }", "light_source { <10,20,-15> rgb 1 }",
             "light_source { <-15,12,-5> rgb 0.5 }",
             "plane { y,-1 pigment { checker rgb 0.2, rgb 0.9 } finish { reflection 0.15 } }"]
    for _ in range(120):
        x, y, z, r = (draw.uniform(-6, 6), draw.uniform(-0.5, 5), draw.uniform(-4, 8), draw.uniform(0.2, 0.8))
        finish = draw.choice(["reflection 0.4 phong 0.8", "phong 0.5", "ambient 0.2 diffuse 0.7"])
        texture = draw.choice(["pigment { marble turbulence 0.8 }", "pigment { granite scale 0.4 }",
                               "pigment { rgb <0.8,0.3,0.2> }", "pigment { rgbf <0.9,0.9,1,0.8> } interior { ior 1.4 }"])
        shape = draw.choice([f"sphere {{ <{x:.3f},{y:.3f},{z:.3f}>,{r:.3f} ",
                             f"torus {{ {r:.3f},{r / 3:.3f} translate <{x:.3f},{y:.3f},{z:.3f}> "])
        lines.append(f"{shape}{texture} finish {{ {finish} }} }}")
    (folder / "scene.pov").write_text("\n".join(lines) + "\n")


def beam(folder):
    """A clamped beam of bricks with a load at its end."""
    nx, ny, nz = 36, 8, 8
    number = lambda x, y, z: (z * (ny + 1) + y) * (nx + 1) + x + 1
    with open(folder / "beam.inp", "w") as out:
        out.write("*NODE, NSET=ALL\n")
        for z in range(nz + 1):
            for y in range(ny + 1):
                for x in range(nx + 1):
                    out.write(f"{number(x, y, z)},{x / 4},{y / 8},{z / 8}\n")
        out.write("*ELEMENT, TYPE=C3D8, ELSET=BEAM\n")
        element = 0
        for z in range(nz):
            for y in range(ny):
                for x in range(nx):
                    element += 1
                    corners = [(x, y, z), (x + 1, y, z), (x + 1, y + 1, z), (x, y + 1, z)]
                    corners += [(a, b, c + 1) for a, b, c in corners]
                    out.write(f"{element}," + ",".join(str(number(*c)) for c in corners) + "\n")
        out.write("*BOUNDARY\n")
        for z in range(nz + 1):
            for y in range(ny + 1):
                out.write(f"{number(0, y, z)},1,3\n")
        out.write("*MATERIAL, NAME=STEEL\n*ELASTIC\n210000,0.3\n*SOLID SECTION, ELSET=BEAM, MATERIAL=STEEL\n")
        out.write("*STEP\n*STATIC\n*CLOAD\n")
        for y in range(ny + 1):
            out.write(f"{number(nx, y, nz)},3,-10\n")
        out.write("*NODE PRINT, NSET=ALL\nU\n*END STEP\n")


def plan(folder):
    """What to make and to ship, over months: a linear program."""
    draw = random.Random(6)
    plants, places, goods, months = 8, 18, 8, 8
    term = lambda kind, *at: kind + "_".join(map(str, at))
    costs, rows = [], []
    for t in range(months):
        for g in range(goods):
            for p in range(plants):
                costs.append(f"{draw.randrange(5, 40)} {term('m', p, g, t)}")
                costs.append(f"{draw.randrange(1, 4)} {term('s', p, g, t)}")
                out = " - ".join(term("x", p, d, g, t) for d in range(places))
                kept = f" + {term('s', p, g, t - 1)}" if t else ""
                rows.append(f"{term('m', p, g, t)}{kept} - {term('s', p, g, t)} - {out} = 0")
            for d in range(places):
                into = " + ".join(term("x", p, d, g, t) for p in range(plants))
                rows.append(f"{into} >= {draw.randrange(20, 90)}")
                costs += [f"{draw.randrange(1, 30)} {term('x', p, d, g, t)}" for p in range(plants)]
        for p in range(plants):
            made = " + ".join(f"{draw.randrange(1, 5)} {term('m', p, g, t)}" for g in range(goods))
            rows.append(f"{made} <= {draw.randrange(2400, 3600)}")
            load = " + ".join(f"{draw.randrange(1, 4)} {term('x', p, d, g, t)}" for d in range(places) for g in range(goods))
            rows.append(f"{load} <= {draw.randrange(1800, 2600)}")
    with open(folder / "plan.lp", "w") as out:
        out.write("Minimize\n obj: " + "\n + ".join(costs) + "\nSubject To\n")
        for n, row in enumerate(rows):
            out.write(f" r{n}: " + row.replace(" + ", "\n + ").replace(" - ", "\n - ") + "\n")
        out.write("End\n")


def speech(folder):
    text = "The planner divides the processors and turns rates into budgets."
    (folder / "text").write_text(text)
    run(folder, "flite", "-voice", "slt", "-f", "text", "-o", "speech.wav")


def species(folder):
    """Genes of species that descend from one."""
    draw = random.Random(7)
    family = ["".join(draw.choices("ACGT", k=600))]
    while len(family) < 70:
        parent = draw.choice(family)
        family.append("".join(draw.choice("ACGT") if draw.random() < 0.06 else one for one in parent))
    (folder / "species.fa").write_text("".join(f">s{n}\n{gene}\n" for n, gene in enumerate(family)))


FOAM = "WM_PROJECT_DIR=/usr/share/openfoam"


def foam(kind, name, body):
    return (f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name}; }}\n{body}\n")


def cavity(folder):
    """The flow in a box whose lid moves: OpenFOAM's first tutorial, on a finer mesh."""
    size = 300
    for sub in ("system", "constant", "0"):
        (folder / sub).mkdir()
    mesh = f"""scale 0.1;
vertices ((0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 0.1) (1 0 0.1) (1 1 0.1) (0 1 0.1));
blocks (hex (0 1 2 3 4 5 6 7) ({size} {size} 1) simpleGrading (1 1 1));
boundary (lid {{ type wall; faces ((3 7 6 2)); }}
  walls {{ type wall; faces ((0 4 7 3) (2 6 5 1) (1 5 4 0)); }}
  sides {{ type empty; faces ((0 3 2 1) (4 5 6 7)); }});"""
    control = """application icoFoam; startFrom startTime; startTime 0; stopAt endTime; endTime 0.0001;
deltaT 0.0001; writeControl timeStep; writeInterval 1000; writeFormat ascii; runTimeModifiable false;"""
    schemes = """ddtSchemes { default Euler; } gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; } laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; } snGradSchemes { default orthogonal; }"""
    solution = """solvers { p { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0.4; }
 pFinal { $p; relTol 0.3; } U { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-05; relTol 0.2; } }
PISO { nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }"""
    speed = """dimensions [0 1 -1 0 0 0 0]; internalField uniform (0 0 0);
boundaryField { lid { type fixedValue; value uniform (1 0 0); } walls { type noSlip; } sides { type empty; } }"""
    pressure = """dimensions [0 2 -2 0 0 0 0]; internalField uniform 0;
boundaryField { lid { type zeroGradient; } walls { type zeroGradient; } sides { type empty; } }"""
    for place, kind, body in (("system/blockMeshDict", "dictionary", mesh), ("system/controlDict", "dictionary", control),
                              ("system/fvSchemes", "dictionary", schemes), ("system/fvSolution", "dictionary", solution),
                              ("constant/transportProperties", "dictionary", "nu 0.01;"),
                              ("0/U", "volVectorField", speed), ("0/p", "volScalarField", pressure)):
        (folder / place).write_text(foam(kind, place.split("/")[1], body))
    run(folder, "env", FOAM, "blockMesh")


FDTD = """
(set! geometry-lattice (make lattice (size 16 10 no-size)))
(set! geometry (list
  (make block (center 0 0) (size infinity 1 infinity) (material (make dielectric (epsilon 12))))
  (make cylinder (center 2 1.5) (radius 0.9) (height infinity) (material (make dielectric (epsilon 8))))))
(set! sources (list (make source (src (make continuous-src (frequency 0.15))) (component Ez) (center -7 0))))
(set! pml-layers (list (make pml (thickness 1.0))))
(set! resolution 24)
(run-until 10)
"""


def waves(folder):
    (folder / "waves.ctl").write_text(FDTD)


def clauses(folder):
    """Random clauses of three literals, below the threshold: most have a solution, hard to find."""
    draw = random.Random(8)
    variables = 40000
    count = int(3.1 * variables)
    with open(folder / "random.cnf", "w") as out:
        out.write(f"p cnf {variables} {count}\n")
        for _ in range(count):
            chosen = draw.sample(range(1, variables + 1), 3)
            out.write(" ".join(str(v if draw.random() < 0.5 else -v) for v in chosen) + " 0\n")


def reads(folder):
    draw = random.Random(9)
    genome = "".join(draw.choices("ACGT", k=8_000_000))
    (folder / "genome.fa").write_text(">chromosome\n" + "\n".join(genome[n:n + 60] for n in range(0, len(genome), 60)) + "\n")
    with open(folder / "reads.fq", "w") as out:
        for n in range(4000):
            at = draw.randrange(len(genome) - 150)
            read = [draw.choice("ACGT") if draw.random() < 0.02 else one for one in genome[at:at + 150]]
            out.write(f"@r{n}\n{''.join(read)}\n+\n{'I' * 150}\n")
    run(folder, "bwa", "index", "genome.fa")


def tables(folder):
    """Orders and customers without an index: the join builds one, and jumps through it."""
    (folder / "make.sql").write_text(
        "CREATE TABLE customer(id INTEGER, name TEXT, town INTEGER);\n"
        "CREATE TABLE orders(id INTEGER, customer INTEGER, price INTEGER);\n"
        "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 150000)\n"
        "INSERT INTO customer SELECT (i * 7919) % 150001, 'name ' || (i * 31337) % 1000003, i % 97 FROM n;\n"
        "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 300000)\n"
        "INSERT INTO orders SELECT i, (i * 104729) % 150001, (i * 17) % 1009 FROM n;\n")
    run(folder, "sqlite3", "shop.db", stdin="make.sql")
    (folder / "ask.sql").write_text(
        "PRAGMA cache_size = -200000; PRAGMA temp_store = memory;\n"
        "SELECT town, count(*), sum(price) FROM orders JOIN customer ON orders.customer = customer.id\n"
        "GROUP BY town ORDER BY 3 DESC LIMIT 5;\n"
        "SELECT count(DISTINCT name) FROM customer;\n")


def words(folder):
    draw = random.Random(10)
    with open(folder / "lines", "w") as out:
        for _ in range(600_000):
            out.write(f"{draw.getrandbits(80):020x} {draw.randrange(10**9)}\n")


PROGRAMS = [
    Program("bzip2", "401.bzip2: block-sorting compression", "bzip2", ["bzip2", "-9", "-c", "corpus"],
            "5 MB of Perl's modules, one after another", corpus),
    Program("gcc", "403.gcc: compiler", "g++-12",
            ["/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "-quiet", "-O2", "-fpreprocessed", "unit.ii", "-o", "/dev/null"],
            "templates of libstdc++, instantiated", unit),
    Program("lemon", "429.mcf: minimum cost flow by the network simplex method", "liblemon-utils",
            ["dimacs-solver", "flow.min", "/dev/null"], "vehicles for 15,000 trips, generated", flow),
    Program("gnugo", "445.gobmk: Go", "gnugo", ["gnugo", "--mode", "gtp", "--seed", "1"],
            "10 moves on a board of 13 by 13", go, stdin="game.gtp"),
    Program("hmmer2", "456.hmmer: gene search by hidden Markov models", "hmmer2",
            ["hmm2search", "--cpu", "0", "family.hmm", "proteins.fa"], "300 random proteins, a family of 20", genes),
    Program("stockfish", "458.sjeng: chess", "stockfish",
            ["stockfish", "bench", "16", "1", "9", "default", "depth", "classical"],
            "its own positions, 9 plies deep, without the neural network", nothing),
    Program("libquantum", "462.libquantum: simulated quantum computer", "libquantum8", ["./shor"],
            "Shor's algorithm, a main program of the script that calls the library", shor),
    Program("x264", "464.h264ref: video encoding", "x264",
            ["x264", "--threads", "1", "--asm", "SSE4.2", "--preset", "medium", "--input-res", "352x288", "-o", "/dev/null", "film.yuv"],
            "50 frames of ffmpeg's mandelbrot, 352 by 288", film),
    Program("vvp", "471.omnetpp: discrete events", "iverilog", ["vvp", "net.vvp"],
            "a network of queues in Verilog", network),
    Program("routino", "473.astar: path finding", "routino",
            ["routino-router", "--dir=.", "--prefix=town", "--transport=motorcar", "--quickest", "--output-none",
             "--profiles=/usr/share/routino/profiles.xml", "--translations=/usr/share/routino/translations.xml",
             *(f"--{axis}{n}={value}" for n, (lon, lat) in enumerate(STOPS, 1) for axis, value in (("lon", lon), ("lat", lat)))],
            "eight trips across a generated town of 250 by 250 crossings", streets),
    Program("xsltproc", "483.xalancbmk: XML transformation", "xsltproc", ["xsltproc", "sheet.xsl", "orders.xml"],
            "14,000 generated orders, grouped and sorted", orders),
    Program("perl", "400.perlbench: Perl", "perl", ["perl", "/usr/bin/pod2man", "--errors=none", "all.pod"],
            "0.7 MB of Perl's own manuals", pods),
    Program("xz", "compression with a large dictionary", "xz-utils", ["xz", "-9", "-T1", "-c", "corpus"],
            "1.5 MB of the compiler's program", binary),
    Program("sqlite3", "a join of a database", "sqlite3", ["sqlite3", "shop.db"],
            "300,000 orders of 150,000 customers, no index", tables, stdin="ask.sql"),
    Program("sort", "sorting", "coreutils", ["sort", "--parallel=1", "-S", "512M", "lines"],
            "600,000 random lines", words),
    Program("minisat", "satisfiability", "minisat", ["minisat", "-verb=0", "random.cnf"],
            "random clauses of three literals, 3.1 per variable", clauses, status=(10, 20)),
    Program("bwa", "gene search by an index", "bwa", ["bwa", "mem", "-t", "1", "genome.fa", "reads.fq"],
            "4,000 reads in a random genome of 8 million bases", reads),
    Program("povray", "453.povray: ray tracing", "povray",
            ["povray", "+Iscene.pov", "+O/dev/null", "+FN", "+W200", "+H150", "+WT1", "-D", "+A0.3", "-GA"],
            "120 generated bodies, 200 by 150", scene),
    Program("calculix", "454.calculix: finite elements", "calculix-ccx", ["ccx", "beam"],
            "a beam of 2,304 bricks", beam),
    Program("glpsol", "450.soplex: linear programming by the simplex method", "glpk-utils",
            ["glpsol", "--lp", "plan.lp", "--nopresol"], "a generated plan of production and transport", plan),
    Program("pocketsphinx", "482.sphinx3: speech recognition", "pocketsphinx",
            ["pocketsphinx_continuous", "-infile", "speech.wav"], "a sentence spoken by flite", speech),
    Program("fasttree", "phylogenetics, in floating point", "fasttree", ["fasttree", "-nt", "-gtr", "-quiet", "species.fa"],
            "70 generated genes of 600 bases", species),
    Program("openfoam", "437.leslie3d: fluid dynamics", "openfoam", ["icoFoam"],
            "the lid-driven cavity, 300 by 300 cells, a step", cavity, env=dict([FOAM.split("=")])),
    Program("meep", "459.GemsFDTD: Maxwell's equations in the time domain", "meep", ["meep", "waves.ctl"],
            "a waveguide and a cylinder in two dimensions", waves),
]
