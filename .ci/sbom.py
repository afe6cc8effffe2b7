"""Checks an SBOM against CycloneDX's own schema, and that it lists what the binary is known to contain."""
import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
if error:
    sys.exit(f"{sys.argv[1]}: not valid CycloneDX 1.6: {str(error).splitlines()[0]}")
names = {component["name"] for component in json.loads(text)["components"]}
missing = {"aws-lc-sys", "rustls", "h2", "tokio"} - names
# Crates that only tests use must not be listed.
extra = {"proptest", "insta", "criterion"} & names
if missing or extra:
    sys.exit(f"{sys.argv[1]}: missing {sorted(missing)}, not in the binary {sorted(extra)}")
print(f"valid CycloneDX 1.6 with {len(names)} components")
