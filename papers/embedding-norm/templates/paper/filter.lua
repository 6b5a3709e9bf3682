-- What Typst and LaTeX say differently, and pandoc does not say for a page of two columns:
-- figures, tables, references to them, the abstract, the bibliography and the appendix.
-- A table or figure floats to the top of its column; .wide lets it span both, .anywhere lets it float
-- to the bottom too, .here keeps it in its place, .long lets it run over pages (in the appendix's part
-- of one column). Figures stand as large as drawn.

local latex = FORMAT == "latex"
local typst = not latex
local abstract = nil

local function raw(text) return pandoc.RawBlock(FORMAT, text) end

local function write(blocks)
  local text = pandoc.write(pandoc.Pandoc(blocks), FORMAT .. "-smart", { cite_method = latex and "natbib" or "citeproc" })
  return (text:gsub("%s+$", ""))
end

-- References: @fig:x, @tbl:x, @sec:x. Everything else is a citation.
local NAMES = { fig = "Figure", tbl = "Table", sec = "Section" }

function Cite(cite)
  local parts, found = {}, false
  for _, citation in ipairs(cite.citations) do
    local kind = citation.id:match("^(%a+):")
    if NAMES[kind] then
      found = true
      table.insert(parts, latex and (NAMES[kind] .. "~\\ref{" .. citation.id .. "}") or ("@" .. citation.id))
    end
  end
  if found then return pandoc.RawInline(FORMAT, table.concat(parts, ", ")) end
end

local function has(element, class) return element.classes:includes(class) end

-- Where it may go, as the options of a float.
local function placed(div)
  if latex then
    local star = has(div, "wide") and not has(div, "here") and "*" or ""
    local where = has(div, "here") and "[H]" or has(div, "anywhere") and "[tb]"
    return star, where or "[t]"
  end
  if has(div, "here") or has(div, "long") then return "placement: none" end
  local where = has(div, "anywhere") and "placement: auto" or "placement: top"
  return has(div, "wide") and where .. ', scope: "parent"' or where
end

local function figure(div)
  local file, caption = "figures/" .. div.attributes.file, write(div.content)
  if latex then
    local star, where = placed(div)
    return raw(table.concat({
      "\\begin{figure" .. star .. "}" .. where,
      "\\centering",
      "\\drawn{" .. file .. "}",
      "\\caption{" .. caption .. "}\\label{" .. div.identifier .. "}",
      "\\end{figure" .. star .. "}",
    }, "\n"))
  end
  return raw(string.format('#figure(%s, image("/%s"), caption: [%s]) <%s>',
    placed(div), file, caption, div.identifier))
end

local LETTER = { AlignLeft = "l", AlignRight = "r", AlignCenter = "c", AlignDefault = "l" }
local WORD = { l = "left", r = "right", c = "center" }

local function cells(rows)
  local result = {}
  for _, row in ipairs(rows) do
    local texts = {}
    for _, cell in ipairs(row.cells) do
      local text = write(cell.contents) -- and no line ends within an interval
      table.insert(texts, (text:gsub("%b[]", function(interval) return #interval < 40 and interval:gsub(", ", ",~") end)))
    end
    table.insert(result, texts)
  end
  return result
end

-- widths="1 3 3": shares of the line for columns that hold prose.
local function shares(div)
  local found, sum = {}, 0
  for share in (div.attributes.widths or ""):gmatch("%S+") do
    table.insert(found, tonumber(share))
    sum = sum + tonumber(share)
  end
  return #found > 0 and found or nil, sum
end

local function latex_table(div, caption, columns, head, body)
  local lines = {}
  local function rows(of) for _, row in ipairs(of) do table.insert(lines, table.concat(row, " & ") .. " \\\\") end end
  local title = "\\caption{" .. caption .. "}\\label{" .. div.identifier .. "}"
  if has(div, "long") then
    lines = { "{\\scriptsize", "\\begin{longtable}{" .. columns .. "}", title .. " \\\\", "\\toprule" }
    rows(head)
    table.insert(lines, "\\midrule\\endfirsthead\n\\toprule")
    rows(head)
    table.insert(lines, "\\midrule\\endhead")
    rows(body)
    table.insert(lines, "\\bottomrule\n\\end{longtable}}")
  else
    local star, where = placed(div)
    lines = { "\\begin{table" .. star .. "}" .. where, "\\centering\\footnotesize", title,
      -- Shrunk only if wider than the line.
      "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
      "\\begin{tabular}{" .. columns .. "}", "\\toprule" }
    rows(head)
    table.insert(lines, "\\midrule")
    rows(body)
    table.insert(lines, "\\bottomrule\n\\end{tabular}}\n\\end{table" .. star .. "}")
  end
  return raw(table.concat(lines, "\n"))
end

local function typst_table(div, caption, widths, letters, head, body)
  local aligned, lines = {}, {}
  for _, letter in ipairs(letters) do table.insert(aligned, WORD[letter]) end
  local function rows(of)
    local texts = {}
    for _, row in ipairs(of) do
      local contents = {}
      for _, text in ipairs(row) do table.insert(contents, "[" .. text .. "]") end
      table.insert(texts, table.concat(contents, ", ") .. ",")
    end
    return table.concat(texts, "\n")
  end
  lines = {
    "#figure(" .. placed(div) .. ", kind: table, caption: [" .. caption .. "], table(",
    has(div, "long") and "inset: (x: 4pt, y: 4.4pt)," or "",
    "columns: (" .. widths .. ",), align: (" .. table.concat(aligned, ", ") .. ",),",
    "table.hline(stroke: 0.8pt), table.header(" .. rows(head) .. "), table.hline(stroke: 0.5pt),",
    rows(body),
    "table.hline(stroke: 0.8pt))) <" .. div.identifier .. ">",
  }
  return raw(table.concat(lines, "\n"))
end

local function tabular(div)
  local caption, found = {}, nil
  for _, block in ipairs(div.content) do
    if block.t == "Table" then found = block else table.insert(caption, block) end
  end
  assert(found, div.identifier .. " holds no table")
  local head, body = cells(found.head.rows), cells(found.bodies[1].body)
  local parts, sum = shares(div)
  local columns, widths, letters = {}, {}, {}
  for i, spec in ipairs(found.colspecs) do
    local letter = LETTER[spec[1]] or "l"
    table.insert(letters, letter)
    table.insert(columns, parts and string.format("%s{%.3f\\linewidth}", letter == "r" and "R" or "L", 0.91 * parts[i] / sum) or letter)
    table.insert(widths, parts and parts[i] .. "fr" or "auto")
  end
  if latex then return latex_table(div, write(caption), table.concat(columns), head, body) end
  return typst_table(div, write(caption), table.concat(widths, ", "), letters, head, body)
end

function Div(div)
  if div.identifier == "refs" then
    return raw(latex and "\\bibliographystyle{plainnat}\n\\bibliography{references}"
      or '#bibliography("/references.bib", style: "harvard-cite-them-right", title: "References")')
  elseif has(div, "abstract") then
    abstract = div.content
    return {}
  elseif has(div, "figure") then
    return figure(div)
  elseif has(div, "table") then
    return tabular(div)
  end
end

function Header(header)
  local before = {}
  if has(header, "appendix") then table.insert(before, raw(latex and "\\appendix" or "#show: appendix")) end
  if has(header, "onecolumn") then table.insert(before, raw(latex and "\\clearpage\\onecolumn" or "#set page(columns: 1)")) end
  header.classes = {}
  table.insert(before, header)
  return before
end

-- References before tables are written out, so that captions and cells have theirs.
return {
  { Cite = Cite },
  { Div = Div, Header = Header },
  { Meta = function(meta) meta.abstract = pandoc.MetaBlocks(abstract or {}); return meta end },
}
